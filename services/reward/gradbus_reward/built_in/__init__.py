"""The built-in graders whose time no length of a text bounds, in confined processes of their own. They import no pydantic."""

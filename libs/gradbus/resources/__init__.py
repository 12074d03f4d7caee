"""JSON resources: the response bodies of the REST interface, and so the schemas of the OpenAPI document and what clients return."""

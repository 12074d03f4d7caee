"""Families of `gradbus.formats.transformers_families`: transformers' own models behind the interface of Gradbus's decoder.

`loading`: makes a model from a folder, with `configuration`. `model`: the forward pass, over `attention`'s packed sequences or over `rows`.
`stored_names`: what the folder calls the parameters. Imported only for such a folder, because transformers is.
"""

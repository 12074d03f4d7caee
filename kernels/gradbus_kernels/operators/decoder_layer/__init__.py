"""The operations between the products of a decoder layer, with gradients that take few passes over memory."""

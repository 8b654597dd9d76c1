"""Constant kernels of products, of which the weights tell what is made: differences of what lies near one another, or means."""

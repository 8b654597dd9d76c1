"""The model's file: read without its weights, which stay where they lie, at any depth of its graphs."""

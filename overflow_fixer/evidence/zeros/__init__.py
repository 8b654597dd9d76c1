"""Values of which FP16 makes zero, what they are made of, and what is divided by them."""

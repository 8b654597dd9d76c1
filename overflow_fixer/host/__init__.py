"""What this process may use of its machine, and how it ends with others."""

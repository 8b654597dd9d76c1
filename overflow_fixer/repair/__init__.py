"""Where an artifact goes wrong, and the plan widened until it passes."""

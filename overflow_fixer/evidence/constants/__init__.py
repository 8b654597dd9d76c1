"""Constants, and where their values go."""

"""Rules over every node gathered into a plan; how sure it is, and what another one changes."""

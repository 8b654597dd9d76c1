"""How far outputs are from the reference's, batch after batch: meters, and what an SNR does not show."""

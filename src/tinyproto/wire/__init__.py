"""Message ↔ bytes: the codec, what is refused, and the meter. Masks never travel."""

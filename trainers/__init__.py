"""Training entry points and their maths. torch lives here."""

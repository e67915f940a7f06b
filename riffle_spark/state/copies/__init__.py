"""Local copies: their files, a member's folder and its disk."""

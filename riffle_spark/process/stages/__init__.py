"""What the stages of a query compute on a slot."""

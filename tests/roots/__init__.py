"""Roots that earlier versions left behind, and the query that wrote them."""

"""Object stores: the seam, and a file for each store there is."""

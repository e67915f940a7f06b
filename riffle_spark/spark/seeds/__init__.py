"""Write the first version of a query's stores, which no batch computed."""

"""What runs on executors: one slot's Arrow rows and copies in, rows and a receipt out. Does not know Spark or the
driver.
"""

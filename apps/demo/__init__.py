"""The demo: real servers, a producer that keeps a ledger, a job that loses a worker, and the comparison."""

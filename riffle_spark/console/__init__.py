"""What people use besides their jobs: the command line."""

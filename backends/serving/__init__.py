"""What stands between the engines and Triton: ledger, requests, orchestrator, the loops of the two processes."""

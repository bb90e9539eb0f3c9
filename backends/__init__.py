"""What computes: talker and codec engines, the orchestrator between them, model families, voices."""

"""Other ways to orchestrate the same paced talker and codec on Triton. For measuring beside ours only."""

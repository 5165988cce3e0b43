"""The endpoint in front of the engine for agents that a generate function runs, and their conversations with it."""

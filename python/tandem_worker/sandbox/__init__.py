"""What confines a worker process, and what looks after it and ends it. Nothing here runs the user's code."""

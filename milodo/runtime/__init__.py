"""Real processes: joining a group of them, starting them, keeping their states, and the two things they do: race and solve."""

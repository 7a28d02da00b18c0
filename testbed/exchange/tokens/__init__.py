"""``pinch`` by tokens: rows land where the process adds them up; see docs/pinch.md."""

"""Where a step's time goes, and how much of what the devices can do is used: clocks, flops, peaks and traces."""

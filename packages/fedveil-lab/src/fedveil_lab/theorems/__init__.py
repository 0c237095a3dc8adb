"""The papers' convergence bounds, with their errors mended, and what they say about a run."""

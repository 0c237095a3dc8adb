"""What a recipe may say, and a recipe for every method."""

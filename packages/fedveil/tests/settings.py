"""Settings that several tests give to commands."""

# Every setting that a table without a recipe would be searched for.
TUNED = ["--unit", "client", "--set", "training.learning_rate=0.1", "--set", "privacy.clip_norm=1"]
TUNED += ["--set", "training.local_epochs=5", "--set", "training.rounds=2"]

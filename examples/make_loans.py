"""Made-up loans: `python examples/make_loans.py` writes loans.csv and new.csv beside this file."""

from __future__ import annotations

import csv
import io
import random
from pathlib import Path

WORTH = {"car": 8, "house": 0, "travel": -8}


def loans(customers: int, seed: int) -> str:
    """Two to six loans of each customer, graded A or B by income, purpose and chance."""
    draw, made = random.Random(seed), io.StringIO()
    table = csv.writer(made, lineterminator="\n")
    table.writerow(["customer", "income", "purpose", "grade"])
    for customer in range(customers):
        usual = draw.gauss(50, 9)
        for _ in range(draw.randint(2, 6)):
            income, purpose = round(usual + draw.gauss(0, 4), 1), draw.choice(list(WORTH))
            grade = "A" if income + WORTH[purpose] + draw.gauss(0, 4) > 50 else "B"
            table.writerow([f"c{customer:04d}", income, purpose, grade])
    return made.getvalue()


FILES = {"loans.csv": (1000, 1), "new.csv": (50, 2)}

if __name__ == "__main__":
    for name, (customers, seed) in FILES.items():
        file = Path(__file__).with_name(name)
        file.write_text(loans(customers, seed), encoding="utf-8", newline="")

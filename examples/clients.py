"""Who will default? From a file of transactions to a Gini and the events that an answer rests on.

Half of the clients gamble and draw cash on the next day: seven of ten of them default. The others
do both as often, in the other order: one of ten defaults. Counts do not tell them apart.
"""

import csv
import random
from datetime import datetime, timedelta
from pathlib import Path

import weft
from weft.arena.analysis.timelines import write_timelines
from weft.report import write_report

CLIENTS, EVENTS = 600, 24


def write_transactions(path):
    """One row for each event; the label stands in each row of a client."""
    draw = random.Random(0)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("client", "when", "kind", "amount", "default"))
        for client in range(CLIENTS):
            risky = draw.random() < 0.5
            default = int(draw.random() < (0.7 if risky else 0.1))
            kinds = draw.choices(("card", "food", "rent", "travel"), k=draw.randint(12, EVENTS))
            at = draw.randint(0, len(kinds) - 2)
            kinds[at : at + 2] = ("gambling", "cash") if risky else ("cash", "gambling")
            for day, kind in enumerate(kinds):
                when = datetime(2025, 1, 1) + timedelta(days=day, hours=draw.randint(0, 23))
                amount = round(draw.lognormvariate(3, 1), 2)
                table.writerow((f"c{client}", when, kind, amount, default))


data = Path("transactions.csv")
write_transactions(data)
model = weft.fit(
    events=str(data),
    id="client",
    time="when",
    label="default",
    last=EVENTS,
    mixer="linformer(compress='convolution', width=2)",
    steps=200,
    out="runs/clients",
    settings=["model.layers=1", "model.dim=32", "model.heads=2", "training.lr=1e-2"],
)
scores = model.scores
print(f"Gini {scores['gini']:.2f} ± {scores['gini error']:.2f} on clients of the test split")
answers = list(weft.predict_events(model, str(data), proba=True))
print(f"{answers[0]['client']}: default with probability {answers[0]['p(1)']:.2f}")
for events in write_timelines("runs/clients"):
    strongest = max(events, key=lambda event: abs(event["influence"]))
    print(f"{strongest['client']}: {strongest['influence']:+.2f} by {strongest['event']}")
print(f"timelines: {write_report('runs/clients')}")

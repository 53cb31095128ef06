"""A weft classifier in Transformers: trained here, exported, and used by a pipeline."""

from transformers import pipeline

import weft
import weft.interop.hf

rows = [
    {"text": f"{name} {verb} {how}", "label": how}
    for name in ("rain", "wind", "snow", "sun")
    for verb in ("came", "went", "stayed")
    for how in ("early", "late")
] * 5
small = ["model.layers=1", "model.dim=32", "model.heads=2", "training.lr=1e-2"]
model = weft.fit(rows, steps=60, out="runs/when", settings=small)
folder = weft.interop.hf.export("runs/when", "exported")
print((folder / "README.md").read_text())

texts = ["hail came late", "frost went early"]
found = [each["label"] for each in pipeline("text-classification", str(folder))(texts)]
print(found, model.predict(texts))

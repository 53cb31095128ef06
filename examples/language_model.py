"""A byte language model with a sliding window: train it on a saying, then let it write.

While it writes it remembers the last window of each layer and no more: the state is as large after
a million bytes as after a hundred.
"""

import torch
import torch.nn.functional as F

import weft

torch.manual_seed(0)
saying = b"Over and under, the weft crosses the warp; under and over, it comes back. "
text = torch.tensor(list(saying * 20))
model = weft.LanguageModel(
    trunk=weft.Decoder(
        embedding=weft.Embedding(vocab=256),
        stack=weft.Stack(
            frame=weft.Frame(dim=64, heads=4, positions=weft.Rope()),
            order="sfsf",
            mixer="sliding_window(window=32)",
        ),
    )
).build()

LENGTH = 128
optimiser = torch.optim.AdamW(model.parameters(), lr=5e-3)
losses = []
for step in range(100):
    begin = torch.randint(len(text) - LENGTH, (4, 1))
    batch = text[begin + torch.arange(LENGTH + 1)]
    scores = model(batch[:, :-1])
    loss = F.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    losses.append(loss.item())
    if step % 25 == 24:
        print(f"step {step + 1:3}  {losses[-1] / 0.6931:.2f} bits a byte")

prompt = torch.tensor([list(b"Over and ")])
written = bytes(model.generate(prompt, max_new_tokens=65)[0].tolist())
print(written.decode(errors="replace"))
print(f"state after 100 bytes: {model.state_size(100):,} numbers")
print(f"state after 1,000,000: {model.state_size(1_000_000):,} numbers")

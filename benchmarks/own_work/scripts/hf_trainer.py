"""A GPT-2 trained with HF Trainer: dropout, gradient accumulation, a scheduler, and evaluations between the steps."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

set_seed(7)
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(1)
rows = torch.randint(0, 96, (84, 24), generator=generator)
samples = [{"input_ids": row, "labels": row} for row in rows]
model = GPT2LMHeadModel(
    GPT2Config(vocab_size=96, n_positions=24, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
)
settings = TrainingArguments(
    output_dir="hf",
    max_steps=30,
    per_device_train_batch_size=3,
    gradient_accumulation_steps=2,
    learning_rate=1e-3,
    warmup_steps=5,
    eval_strategy="steps",
    eval_steps=4,
    save_steps=4,
    logging_steps=1,
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
)
trainer = Trainer(model, settings, train_dataset=samples[:72], eval_dataset=samples[72:])
trainer.train()

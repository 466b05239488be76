"""Cleaning for those who fine-tune a language model: from a file of chats to a better model.

It uses what `cleaning/` has (the project's folder, decisions, copies, plans, verdicts, export, the
report) and what `integrations/transformers/` has (recording, scores per token), and is above both.
transformers and peft are imported only when something is fine-tuned.
"""

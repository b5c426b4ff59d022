"""Measurements of sfumato: accuracy, speed, memory and compile time. See README.md."""

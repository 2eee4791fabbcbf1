"""The training loop and what it needs: checkpoints, processes, sharded layers, interrupts, curves."""

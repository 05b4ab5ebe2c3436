"""`moonpool replay`: a trace through a real pool of separate processes, every byte checked."""

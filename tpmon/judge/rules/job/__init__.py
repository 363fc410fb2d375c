"""Judge the job as a whole: what runs out besides memory, and what its pauses cost."""

"""Read /proc: processes, threads, memory, waits, and what they wait for."""

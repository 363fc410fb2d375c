"""Let the pilot of the screen wait no longer than it must."""

import textual._wait

# It calls a program idle that did next to nothing for 20 ms, twice for each key: 5 ms tell as much.
textual._wait.SLEEP_GRANULARITY = 0.005
textual._wait.SLEEP_IDLE = 0.001

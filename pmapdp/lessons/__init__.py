"""The parts that the lessons share: drawings, and the checks of their exercises."""

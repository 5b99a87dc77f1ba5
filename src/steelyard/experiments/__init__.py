"""The paper's experiment: configs, designs, units, executors, results."""

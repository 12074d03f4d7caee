"""The critic of PPO: values of states, and advantages from them."""

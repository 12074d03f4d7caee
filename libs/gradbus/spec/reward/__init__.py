"""The section `[reward]`: graders, services of users' own and reward models."""

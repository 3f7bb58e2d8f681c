// Package image tests the container image that make image wrote: its file system and settings against what
// /manifests expects, and that its binary runs in it. It has only tests.
package image

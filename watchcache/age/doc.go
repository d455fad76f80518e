// Package age knows the ages in the cells of Tables: which cells may contain an age, and whether
// this machine's clock is right enough to compute ages.
package age

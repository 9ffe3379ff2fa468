// Package journal keeps the facts of a book in order: an append-only list of
// entries, in a file or in memory. It stores and checks; which entry may
// follow which is the business of package budget.
package journal
